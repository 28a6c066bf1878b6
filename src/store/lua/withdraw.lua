-- Ends a hold that too few servers have granted. Wakes no client: clients whose attempts have
-- collided would collide again at once.
-- KEYS  1 lock
-- ARGV  1 owner
-- RETURNS 1, or 0 if there is no such hold
if (redis.call('hget', KEYS[1], ARGV[1]) or '0') == '0' then
  return 0
end
return redis.call('hdel', KEYS[1], ARGV[1])
