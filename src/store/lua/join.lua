-- Part of the scripts in which a client may begin to wait.
-- USES  `at_least` and `clock`
-- SETS  `is_waiting` and `join`

-- Returns whether a client is in the queue in its usual place, and not only for a moment. The queue
-- is prolonged only now and then: each command costs the server time, and most clients ask more
-- often.
local function is_waiting(queue, client, life)
  local place = tonumber(redis.pcall('zscore', queue, client))
  local left = place and place > 0 and place < 5e12 and redis.pcall('pttl', queue)
  if type(left) ~= 'number' or left < 0 then
    return false
  elseif left < life - 25000 then
    redis.pcall('pexpire', queue, life)
  end
  return true
end

-- Adds a client to the queue unless it is there. Returns whether it is there now. `life` is the
-- minimum TTL of the queue in ms: clients that try for the lock less often give it a longer one. A
-- client that `tries` waits only for a moment, behind all others, until it joins for longer. No key
-- is left without a TTL, whatever right the user lacks.
local function join(queue, client, time, life, tries)
  local place = clock(time) .. 'e-3'
  if tries then
    place = place + 1e13
  end
  local joined = type(redis.pcall('zadd', queue, 'lt', place, client)) == 'number'
  if joined and redis.pcall('pexpire', queue, at_least(life, queue)) ~= 1 then
    if redis.pcall('zrem', queue, client) ~= 1 and redis.pcall('pttl', queue) == -1 then
      redis.pcall('set', queue, '', 'px', 1)
    end
    joined = false
  end
  return joined
end
