-- Begins a hold of a lock that no other client asks for, like `acquire.lua`, renews it and ends it,
-- so that a client learns whether it could acquire locks. Leaves nothing behind, except that if a
-- right is missing, the counter stays until it expires.
-- KEYS  1 lock, 2 fence
-- ARGV  1 owner, 2 lease in ms, 3 life of the fence in ms
-- USES  `find_holder`, `clock` and `next_token`
-- RETURNS 1
local _, _, _, foreign = find_holder()
if foreign then
  return foreign
end
local fence, trouble = next_token(clock(redis.call('time')))
if not fence then
  return trouble
end
-- While there is no lock, these write nothing, but show whether the user has the rights.
redis.call('hdel', KEYS[1], ARGV[1])
redis.call('pexpire', KEYS[1], ARGV[2])
redis.call('hset', KEYS[1], ARGV[1], 1)
redis.call('hget', KEYS[1], ARGV[1])
redis.call('pexpire', KEYS[1], ARGV[2])
redis.call('hdel', KEYS[1], ARGV[1])
redis.pcall('del', KEYS[2])
return 1
