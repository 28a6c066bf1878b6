-- Part of the scripts that may free a lock, for clients that exchange wake-ups with Redisson: looks
-- whether Redisson waits. It is in no queue, but it listens on the channel of the lock. So does
-- each client of this kind that is in the queue: if more listen than those, Redisson waits. Then it
-- has a place in the queue, as one client, `redisson`. Failures are ignored: Redisson is told that
-- the lock is free, but gets no turn.
-- KEYS  last but one: queue of waiting clients, last: Redisson's turn
-- ARGV  the last ones: channel; `s` if it is a sharded one, as in a cluster, else nothing; life of
--       the queue in ms; Redisson's turn in ms
-- SETS  `channel`, `form`, `turn` and `waits`
local channel, form, life, turn = unpack(ARGV, #ARGV - 3)
local told = redis.pcall('pubsub', form == 's' and 'shardnumsub' or 'numsub', channel)
if form == 's' and told.err then
  -- Redis 6.2 has no sharded channels, and Redisson then uses others.
  form, told = '', redis.pcall('pubsub', 'numsub', channel)
end
local queued = redis.pcall('zcard', KEYS[#KEYS - 1])
local place = redis.pcall('zscore', KEYS[#KEYS - 1], 'redisson')
local clients = (type(queued) == 'number' and queued or 0) - (type(place) == 'string' and 1 or 0)
local waits = (told[2] or 0) > clients
if waits and type(place) ~= 'string' then
  local now = redis.call('time')
  local joined = redis.pcall(
    'zadd', KEYS[#KEYS - 1], 'nx', now[1] * 1000 + now[2] / 1000, 'redisson')
  -- No key is left without a TTL, even if the user lacks the right to set one.
  if type(joined) == 'number' and redis.pcall('pexpire', KEYS[#KEYS - 1], life) ~= 1 then
    redis.pcall('zrem', KEYS[#KEYS - 1], 'redisson')
  end
end

