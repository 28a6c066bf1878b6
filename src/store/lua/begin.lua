-- Part of the scripts that begin a hold of a lock: its depth and its lease. A repeat finds the hold
-- and renews it.
-- KEYS  1 lock
-- ARGV  1 owner, 2 lease in ms
-- USES  `fence` and `kept`; and `replaced`, an owner whose field is removed, or nil
if fence then
  local call, lock = redis.call, KEYS[1]
  if not kept then
    call('hset', lock, ARGV[1], 1)
    if replaced then
      call('hdel', lock, replaced)
    end
  end
  if redis.pcall('pexpire', lock, ARGV[2]) ~= 1 then
    -- The user lacks the right to set a TTL, and without one the lock would be held for ever.
    if redis.pcall('hdel', lock, ARGV[1]) ~= 1 then
      call('set', lock, '', 'px', 1)
    end
    return call('pexpire', lock, ARGV[2])
  end
end

