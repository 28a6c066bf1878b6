-- Part of the scripts that may free a lock, for clients that exchange wake-ups with Redisson: looks
-- whether Redisson waits. It is in no queue, but it listens on the channel of the lock. Clients of
-- this kind that wait do so too, and on a companion of that channel, so the difference is Redisson.
-- Between two turns it does not listen for a moment, so it counts as waiting for a while after it
-- was found to. Then it has a place in the queue, as one client, `redisson`. Failures are ignored:
-- Redisson is told that the lock is free, but gets no turn.
-- KEYS  last but one: queue of waiting clients, last: Redisson's turn, a string with the time in ms
--       at which it ends, or 0, that exists while Redisson counts as waiting
-- ARGV  the last ones: channel; `s` if it is a sharded one, as in a cluster, else nothing; life of
--       the queue in ms; for how many ms Redisson counts as waiting; Redisson's turn in ms
-- SETS  `channel`, `form`, `turn` and `waits`
local channel, form, life = ARGV[#ARGV - 4], ARGV[#ARGV - 3], ARGV[#ARGV - 2]
local memory, turn = ARGV[#ARGV - 1], ARGV[#ARGV]
local companion = 'leasehold:' .. channel
local count = form == 's' and 'shardnumsub' or 'numsub'
local listen = redis.pcall('pubsub', count, channel, companion)
if form == 's' and listen.err then
  -- Redis 6.2 has no sharded channels, and Redisson then uses others.
  form, listen = '', redis.pcall('pubsub', 'numsub', channel, companion)
end
local waits
if listen[2] and listen[2] > listen[4] then
  waits = redis.pcall('set', KEYS[#KEYS], 0, 'px', memory).ok
else
  waits = redis.pcall('exists', KEYS[#KEYS]) == 1
end
if waits and type(redis.pcall('zscore', KEYS[#KEYS - 1], 'redisson')) ~= 'string' then
  local now = redis.call('time')
  local joined = redis.pcall(
    'zadd', KEYS[#KEYS - 1], 'nx', now[1] * 1000 + math.floor(now[2] / 4) / 250, 'redisson')
  -- No key is left without a TTL, even if the user lacks the right to set one.
  if type(joined) == 'number' and redis.pcall('pexpire', KEYS[#KEYS - 1], life) ~= 1 then
    redis.pcall('zrem', KEYS[#KEYS - 1], 'redisson')
  end
end

