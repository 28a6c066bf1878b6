-- Ends a hold of any depth. Redis deletes a hash with its last field, and another owner's field
-- stays. HDEL, unlike HINCRBY, works when the server is out of memory.
-- If the lock stays taken for a while, its owner stays too, with depth 0, and no request of that
-- hold changes anything any more.
-- KEYS  1 lock, 2 queue of waiting clients, 3 if Redisson is told: its turn
-- ARGV  1 owner, 2 for how many ms the lock is offered then, or '' to wake no client: clients whose
--       attempts at a quorum have collided would collide again at once, 3 `shard`, 4 for how many
--       ms from now the lock stays taken, or 0, 5 and later with KEYS 3: as in `redisson.lua`
-- USES  `wake` and `tell_redisson`
-- RETURNS 1, also if the lock is kept already, or 0 if the hold is gone
local answer
if ARGV[4] == '0' and ARGV[2] ~= '' then
  answer = redis.call('hdel', KEYS[1], ARGV[1])
else
  local depth = redis.call('hget', KEYS[1], ARGV[1]) or ''
  if depth == '' or depth == '0' then
    return depth == '0' and ARGV[4] ~= '0' and 1 or 0
  elseif ARGV[2] == '' then
    return redis.call('hdel', KEYS[1], ARGV[1])
  end
  -- The first write: a server that is out of memory does not refuse this one, nor others after it.
  redis.call('pexpire', KEYS[1], ARGV[4])
  answer = 1
  redis.call('hset', KEYS[1], ARGV[1], 0)
end
if answer == 0 or KEYS[3] and tell_redisson(KEYS[2], KEYS[3]) then
  return answer
end
-- Usually no client waits, and this is the cheapest way to find out.
if redis.pcall('exists', KEYS[2]) == 1 then
  wake(KEYS[2], ARGV[4] == '0' and ARGV[2] or nil, ARGV[3])
end
return answer
