-- Part of the scripts in which a client may begin to wait.
-- USES  `at_least` and `clock`
-- SETS  `join`

-- Adds a client to the queue unless it is there. `life` is the minimum for the queue in ms: other
-- clients may try for the lock less often. A client that `tries` waits only for a moment, behind
-- all others, until it joins for longer. No key is left without a TTL, whatever right the user
-- lacks.
local function join(queue, client, time, life, tries)
  local place = clock(time) .. 'e-3'
  if tries then
    place = place + 1e13
  end
  local joined = redis.pcall('zadd', queue, 'lt', place, client)
  if type(joined) == 'number' and redis.pcall('pexpire', queue, at_least(life, queue)) ~= 1 then
    if redis.pcall('zrem', queue, client) ~= 1 and redis.pcall('pttl', queue) == -1 then
      redis.pcall('set', queue, '', 'px', 1)
    end
  end
end
