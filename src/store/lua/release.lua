-- Ends a hold of any depth. Redis deletes a hash with its last field, and another owner's field
-- stays. HDEL, unlike HINCRBY, works when the server is out of memory.
-- KEYS  1 lock, 2 queue of waiting clients
-- ARGV  1 owner, 2 for how many ms the lock is offered then, 3 `shard`
-- RETURNS 1, or 0 if the hold is gone
local answer, queue, window = redis.call('hdel', KEYS[1], ARGV[1]), KEYS[2], ARGV[2]
local shard = ARGV[3]
