-- Part of the scripts that may free a lock, for clients that exchange wake-ups with Redisson: tells
-- Redisson unless a hold has the lock, by Redisson's message `0`. If only clients of this kind seem
-- to listen, the message is `00`, which is the same to Redisson, and which they ignore. If it is
-- Redisson's turn in the queue, the lock is left free, and for a while they do not take it.
-- KEYS  1 lock, last: Redisson's turn
-- USES  `answer`; `queue`, a key; `channel`, `form`, `turn` and `waits`
local depths = redis.pcall('hvals', KEYS[1])
if answer ~= 0 and (depths[1] or '0') == '0' then
  redis.pcall(form .. 'publish', channel, waits and '0' or '00')
  local next = redis.pcall('exists', KEYS[1]) == 0 and redis.pcall('zrange', queue, 0, 0)[1]
  if next == 'redisson' or not waits then
    redis.pcall('zrem', queue, 'redisson')
  end
  local memory = next == 'redisson' and waits and redis.pcall('pttl', KEYS[#KEYS])
  if type(memory) == 'number' and memory > 0 then
    local now = redis.call('time')
    local ends = now[1] * 1000 + math.floor(now[2] / 1000) + turn
    if redis.pcall('set', KEYS[#KEYS], string.format('%.0f', ends), 'px', memory).ok then
      return answer
    end
  end
end

