-- Looks for a hold of a read-write lock or a semaphore.
-- KEYS  1 lock
-- ARGV  1 kind and owner
-- USES  `now`
-- RETURNS 1, or 0 if the hold is gone
local score = redis.call('zscore', KEYS[1], ARGV[1])
return score and tonumber(score) > now and 1 or 0
