-- Ends a hold, but keeps the lock taken for a while: its owner stays, with depth 0, and no request
-- of that hold changes anything any more. The lock is offered to no client then. The one that has
-- waited longest is told, so that it learns when the lock will be free.
-- KEYS  1 lock, 2 queue of waiting clients
-- ARGV  1 owner, 2 for how many ms from now the lock stays taken
-- RETURNS 1, also if the lock is kept already, or 0 if the hold is gone
local depth = redis.call('hget', KEYS[1], ARGV[1])
if not depth then
  return 0
end
if depth ~= '0' then
  -- The first write: a server that is out of memory does not refuse this one, nor others after it.
  redis.call('pexpire', KEYS[1], ARGV[2])
  redis.call('hset', KEYS[1], ARGV[1], 0)
  for _, client in ipairs(redis.pcall('zrange', KEYS[2], 0, 99)) do
    if redis.pcall('publish', 'leasehold:wake:' .. client, KEYS[1]) ~= 0 then
      break
    end
  end
end
return 1
