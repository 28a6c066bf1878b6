-- Raises the counter of fencing tokens to that of a hold, if the hold still exists.
-- KEYS  1 lock, 2 fence
-- ARGV  1 owner, 2 token, 3 life of the fence in ms
-- RETURNS 1, or 0 if the hold is gone
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
local last = tonumber(redis.call('get', KEYS[2]) or 0)
if not last or last < tonumber(ARGV[2]) then
  redis.call('set', KEYS[2], ARGV[2], 'px', ARGV[3])
else
  -- A write, so that the WAIT that may follow on this connection covers the counter.
  redis.call('pexpire', KEYS[2], ARGV[3])
end
return 1
