-- Ends the hold of one owner: of this library, of Redisson, or of another library that sets a
-- string. A repeat finds that owner gone, and ends no other hold.
-- KEYS  1 lock, 2 queue of waiting clients, 3 if Redisson is told: its turn
-- ARGV  1 owner, 2 for how many ms the lock is offered then, 3 `shard`, 5 and later with KEYS 3: as
--       in `redisson.lua`
-- USES  `tell`, `wake` and `tell_redisson`
-- RETURNS 1, or 0 if that owner does not hold it
local answer = 0
if redis.call('type', KEYS[1]).ok == 'string' then
  if redis.call('getrange', KEYS[1], 0, 255) == ARGV[1] then
    answer = redis.call('del', KEYS[1])
  end
else
  answer = redis.call('hdel', KEYS[1], ARGV[1])
  if answer == 1 and redis.call('hlen', KEYS[1]) == 1 then
    redis.call('hdel', KEYS[1], 'mode') -- Redisson's, which is no owner.
  end
end
local id, number = string.match(ARGV[1], '^(.*):(%x+)$')
if answer ~= 0 and id then
  tell(id, ARGV[3], 'leasehold:ended:' .. number .. ':' .. KEYS[1])
end
if answer ~= 0 and not (KEYS[3] and tell_redisson(KEYS[2], KEYS[3])) then
  wake(KEYS[2], ARGV[2], ARGV[3])
end
return answer
