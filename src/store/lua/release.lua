-- Ends a hold of any depth. A repeat finds that owner gone, and ends no other hold. Redis deletes a
-- hash with its last field, and another owner's field stays. HDEL, unlike HINCRBY, works when the
-- server is out of memory.
-- If the lock stays taken for a while, its owner stays too, with depth 0, and requests of that hold
-- no longer change anything.
-- KEYS  1 lock, 2 queue of waiting clients, 3 if the client leaves turns to Redisson or to pollers:
--       Redisson's turn, 4 if to pollers: whose turn it is. While the slot of a cluster moves, the
--       lock alone, and then no client is woken
-- ARGV  1 owner, 2 for how many ms the lock is then offered, or '' to wake no client: clients whose
--       attempts at a quorum have collided would collide again at once, 3 for how many ms from now
--       the lock stays taken, or 0; or that number after `leave`: if the hold is not here, its
--       client leaves the queue here too, because it had the lock from other servers; or `force` to
--       end the hold of any owner: of this library, whose client is notified, of Redisson, or of
--       another library that sets a string, 4 `shard`, 5 and later if Redisson is told: as in
--       `redisson.lua`
-- USES  `owner`, `window`, `taken`, `answer`, `waits`, `tell`, `wake`, `tell_redisson` and
--       `leave_to_pollers`
-- RETURNS 1, or 0 if the hold is gone, even if its lock stays taken
local forced, leaves = taken == 'force', string.match(taken, '^leave(%d+)$')
taken = leaves or taken
if forced and redis.call('type', KEYS[1]).ok == 'string' then
  answer = redis.call('getrange', KEYS[1], 0, 255) == owner and redis.call('del', KEYS[1]) or 0
elseif forced then
  answer = redis.call('hdel', KEYS[1], owner)
elseif not answer then
  local depth = redis.call('hget', KEYS[1], owner) or ''
  if depth == '0' or depth == '' and not leaves then
    return 0
  elseif window == '' then
    return redis.call('hdel', KEYS[1], owner)
  elseif depth == '' then
    answer = 0
  else
    -- The first write: a server that is out of memory does not refuse this one, nor later ones.
    redis.call('pexpire', KEYS[1], taken)
    answer, window = 1, nil
    -- The number of the owner says for how long at most, whatever the server's clock does.
    redis.call('hset', KEYS[1], owner, 0)
  end
end
if forced and answer == 1 then
  if redis.pcall('hlen', KEYS[1]) == 1 then
    -- The field left is Redisson's `mode`, which is not an owner.
    redis.pcall('hdel', KEYS[1], 'mode')
  end
  local id, number = string.match(owner, '^(.*):(%x+)$')
  if id then
    tell(id, ARGV[4], 'leasehold:ended:' .. number .. ':' .. KEYS[1])
  end
end
local changed = answer ~= 0
if leaves and not changed then
  local client = string.match(owner, '^(.*):')
  changed = redis.pcall('zrem', KEYS[2], client) == 1
  changed = redis.pcall('hdel', KEYS[1], client .. ':0') == 1 or changed
end
if not changed or not KEYS[2] or ARGV[5] and tell_redisson(KEYS[2], KEYS[3]) then
  return answer
end
if KEYS[4] and leave_to_pollers(KEYS[4]) then
  -- Waiting clients are notified only so that they learn how long that lasts.
  window = nil
end
if (waits or redis.pcall('exists', KEYS[2])) == 1 then
  wake(KEYS[2], window, ARGV[4])
end
return answer
