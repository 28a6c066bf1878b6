-- Takes back a hold that has not come about, because too few servers have granted it. Wakes nobody:
-- clients that got in each other's way would do so again at once.
-- KEYS  1 lock
-- ARGV  1 owner
-- RETURNS 1, or 0 if there is no such hold
return redis.call('hdel', KEYS[1], ARGV[1])
