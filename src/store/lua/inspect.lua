-- Reads the holder of a lock.
-- KEYS  1 lock
-- RETURNS {ms until the lease ends or -1, owner, depth}, empty if it is not held
local fields = redis.call('hgetall', KEYS[1])
if #fields == 0 then
  return {}
end
return {redis.call('pttl', KEYS[1]), fields[1], fields[2]}
