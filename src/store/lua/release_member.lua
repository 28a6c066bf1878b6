-- Ends a hold of a read-write lock or a semaphore, and serves the clients that wait.
-- KEYS  1 lock, 2 queue of waiting clients
-- ARGV  1 kind and owner, 2 for how many ms a place is offered then, 3 the permits, 0 for a
--       read-write lock, 4 `shard`
-- USES  `now`
-- RETURNS 1, or 0 if the hold is gone
local score = redis.call('zscore', KEYS[1], ARGV[1])
if not score then
  return 0
end
redis.call('zrem', KEYS[1], ARGV[1])
local answer = tonumber(score) > now and 1 or 0
local queue, window, permits, me = KEYS[2], tonumber(ARGV[2]), tonumber(ARGV[3]), nil
local shard = ARGV[4]
local serves = redis.pcall('exists', queue) == 1
if serves and permits > 0 and answer == 1 then
  -- Those who wait may go by more permits: as many as with this one are right.
  permits = math.max(permits, redis.call('zcount', KEYS[1], '(' .. now, '+inf') + 1)
end

