-- Ends a hold, but keeps the lock taken for a while: its owner stays, with depth 0, and no request
-- of that hold changes anything any more. The client that has waited longest is told, so that it
-- learns when the lock will be free.
-- KEYS  1 lock, 2 queue of waiting clients
-- ARGV  1 owner, 2 for how many ms from now the lock stays taken, 3 `shard`
-- RETURNS 1, also if the lock is kept already, or 0 if the hold is gone
local answer, queue, window, shard = 1, KEYS[2], nil, ARGV[3]
local depth = redis.call('hget', KEYS[1], ARGV[1])
if not depth or depth == '0' then
  return depth and 1 or 0
end
-- The first write: a server that is out of memory does not refuse this one, nor others after it.
redis.call('pexpire', KEYS[1], ARGV[2])
redis.call('hset', KEYS[1], ARGV[1], 0)

