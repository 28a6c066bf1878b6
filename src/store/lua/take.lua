-- The first part of the script that acquires a lock: the usual case, a free lock for a client that
-- is not in the queue and wants one token. It comes before the parts that it does not need, because
-- a function that a script defines costs up to a third of the cheapest command, called or not.
-- KEYS  1 lock, 2 fence, 4 and 5 as in `acquire.lua`, which this case does not have
-- ARGV  as in `acquire.lua`
-- USES  `clock` and `next_token`
-- SETS  `begin` and `left`, the TTL of the lock, if it was asked for

-- Gives the hold of this owner its lease. Returns nil, or an error reply if the user lacks the
-- right to set a TTL: without one the lock would be held forever.
local function begin(lease)
  if redis.pcall('pexpire', KEYS[1], lease) == 1 then
    return nil
  end
  if redis.pcall('hdel', KEYS[1], ARGV[1]) ~= 1 then
    redis.call('set', KEYS[1], '', 'px', 1)
  end
  return redis.call('pexpire', KEYS[1], ARGV[2])
end

local is_usual = (ARGV[6] or '') == '' and (ARGV[7] or '1') == '1' and not KEYS[4]
local left = is_usual and redis.call('pttl', KEYS[1])
if left == -2 then
  local least = ARGV[5] or ''
  local fence, failure = next_token(least ~= '' and least or clock(redis.call('time')))
  if not fence then
    return failure
  end
  redis.call('hset', KEYS[1], ARGV[1], '1')
  return begin(ARGV[2]) or fence
end
