-- Part of the scripts that begin or renew a hold.
-- SETS  `at_least`, `is_wanted` and `join`

-- Returns the time to live for a key in ms: the wanted one, or the remaining one if that is longer.
-- Clients have different leases and settings, and a request may be executed late: none of them
-- shortens what another one relies on.
local function at_least(wanted, key)
  return math.max(tonumber(wanted), redis.call('pttl', key))
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

-- Adds a client to the queue unless it is there. `life` is the minimum for the queue in ms: other
-- clients may try for the lock less often. No key is left without a TTL, even if the user lacks the
-- right to set one. A client that `tries` waits only for a moment, behind all others, until it
-- joins for longer.
local function join(queue, client, time, life, tries)
  local place = time[1] * 1000 + time[2] / 1000 + (tries and 1e13 or 0)
  local joined = redis.pcall('zadd', queue, 'lt', place, client)
  if type(joined) == 'number' and redis.pcall('pexpire', queue, at_least(life, queue)) ~= 1 then
    redis.pcall('zrem', queue, client)
  end
end
