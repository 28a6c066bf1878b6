-- Removes a client from the queue of a name whose kind may not be known, and takes back an offer to
-- it, because no thread of it waits any more. It may have been woken for a free lock that it no
-- longer wants, so the next client is woken. A client that is offered a place of a read-write lock
-- or a semaphore has left the queue already.
-- KEYS  1 lock, 2 queue of waiting clients, 3 if Redisson is told: its turn
-- ARGV  1 client id, 2 for how many ms the lock is offered then, 3 `shard`, 5 and later with KEYS
--       3: as in `redisson.lua`
-- USES  `serve`, `wake` and `tell_redisson`
-- RETURNS 1, or 0 if the client was not in the queue
local queue, window, shard = KEYS[2], ARGV[2], ARGV[3]
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local permits, answer = 0, 0
for _, kind in ipairs({'r:', 'w:', 'p:'}) do
  local offer = kind .. ARGV[1] .. ':0'
  local ends = tonumber(redis.pcall('zscore', KEYS[1], offer))
  if ends and ends > now and redis.pcall('zrem', KEYS[1], offer) == 1 then
    answer = 1
    if kind == 'p:' then
      -- The number of permits is not known here: as many as with the offer are right.
      permits = redis.call('zcount', KEYS[1], '(' .. now, '+inf') + 1
    end
  end
end
if answer == 1 then
  serve(queue, now, tonumber(window), permits, shard)
  return 1
end
answer = redis.pcall('zrem', queue, ARGV[1]) == 1 and 1 or 0
if redis.pcall('hdel', KEYS[1], ARGV[1] .. ':0') == 1 then
  answer = 1
end
if answer ~= 0 and not (KEYS[3] and tell_redisson(queue, KEYS[3])) then
  wake(queue, window, shard)
end
return answer
