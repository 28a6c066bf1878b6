-- Acquires a lock as a good hand-written script would: a lease, an owner, a fencing token.
-- KEYS: 1 lock, 2 fence. ARGV: 1 owner, 2 lease in ms, 3 life of the fence in ms.
-- RETURNS: the token, or 0 if the lock is held.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
local now = redis.call('TIME')
local last = tonumber(redis.call('GET', KEYS[2]) or 0)
local token = math.max(last + 1, now[1] * 1000000 + now[2])
redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', ARGV[3])
redis.call('HSET', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token
