-- Ends a hold, whatever its depth. Redis deletes a hash with its last field, and a field that is
-- not ours stays. HDEL, unlike HINCRBY, works when the server is out of memory.
-- KEYS  1 lock
-- ARGV  1 owner
-- RETURNS 1, or 0 if the hold is gone
return redis.call('hdel', KEYS[1], ARGV[1])
