-- Part of the scripts that begin or renew a hold.
-- SETS  `at_least` and `join`

-- Returns the time to live for a key in ms: what is wanted, or what it has left if that is longer.
-- Clients have different leases and settings, and a request may be executed late: none of them
-- shortens what another one relies on.
local function at_least(wanted, key)
  return math.max(tonumber(wanted), redis.call('pttl', key))
end

-- Adds a client to the queue unless it is there. `life` is that of the queue in ms, at least: other
-- clients may try for the lock less often. No key is left without a TTL, even if the user lacks the
-- right to set one.
local function join(queue, client, time, life)
  local joined = redis.pcall('zadd', queue, 'nx', time[1] * 1000 + time[2] / 1000, client)
  if type(joined) == 'number' and redis.pcall('pexpire', queue, at_least(life, queue)) ~= 1 then
    redis.pcall('zrem', queue, client)
  end
end
