-- Deletes a lock, whoever holds it, Redisson's included. Other types are left alone.
-- KEYS  1 lock
-- RETURNS 1, or 0 if nobody held it
redis.call('hlen', KEYS[1]) -- Fails on another type.
return redis.call('del', KEYS[1])
