-- Renews the lease of a hold of a read-write lock or a semaphore, or only looks for the hold. Never
-- revives one that is gone or whose time is over.
-- KEYS  1 lock
-- ARGV  1 kind and owner, 2 lease in ms, nothing to leave the end of the hold as it is
-- RETURNS 1, or 0 if the hold is gone
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local score = redis.call('zscore', KEYS[1], ARGV[1])
if not score or tonumber(score) <= now then
  return 0
end
if ARGV[2] then
  local mine, last = now + ARGV[2], redis.call('zrange', KEYS[1], -1, -1, 'withscores')[2]
  -- The first write: a server that is out of memory does not refuse this one, nor others after it.
  redis.call('pexpireat', KEYS[1], math.max(mine, tonumber(last)))
  redis.call('zadd', KEYS[1], 'xx', mine, ARGV[1])
end
return 1
