-- Part of the scripts that begin or renew a hold.
-- SETS  `at_least`, `prolong` and `is_wanted`

-- Returns the time to live for a key in ms: the wanted one, or the remaining one if that is longer.
-- Clients have different leases and settings, and a request may be executed late: none of them
-- shortens a time that another client relies on. But no request gives more than `most`, if that is
-- known: any more was added when the server's clock was set back.
local function at_least(wanted, key, most)
  local left = redis.call('pttl', key)
  left = math.min(left, tonumber(most or left))
  return left > tonumber(wanted) and left or wanted
end

-- Extends a member of a sorted set, which ends at `ends`, to a `lease` from `now`, by the rule of
-- `at_least`. `most` is the whole lease. The key lives as long as its last member.
local function prolong(member, ends, now, lease, most)
  local last = redis.call('zrange', KEYS[1], -1, -1, 'withscores')[2]
  local mine = math.max(now + lease, math.min(ends, now + most))
  -- The first write: a server that is out of memory does not refuse this one, nor later ones.
  redis.call('pexpireat', KEYS[1], math.max(mine, tonumber(last)))
  redis.call('zadd', KEYS[1], mine, member)
end

-- Returns whether a client other than the owner's waits, and not only for a moment.
local function is_wanted(queue, owner)
  local waiting = redis.pcall('zrange', queue, '-inf', '(5e12', 'byscore', 'limit', 0, 2)
  for _, client in ipairs(waiting) do
    if client ~= string.match(owner, '^(.*):') then
      return true
    end
  end
  return false
end
