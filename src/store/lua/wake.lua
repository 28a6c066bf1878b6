-- Part of the scripts that change the queue of waiting clients, or after which one of them may get
-- its turn.
-- KEYS  1 lock
-- SETS  `tell` and `wake`

-- Notifies a client. Returns the number of listeners that this reached, or something other than a
-- number if the server refuses to publish. In a cluster this goes over a sharded channel if the
-- client has one at this node, because a message on any other goes to all nodes. `shard` is the
-- hash tag of such channels, or '' or nil. A sharded channel may not reach the client: Redis 6.2
-- has none, a client does not subscribe to one at once, and slots move. But each client listens on
-- its own channel at every master. The channels are those of `Keys`. The default message is the key
-- of the lock, and means that the lock may be free.
local function tell(client, shard, message)
  local channel, told = 'leasehold:wake:' .. client, 0
  if shard and shard ~= '' then
    told = redis.pcall('spublish', channel .. ':{' .. shard .. '}', message or KEYS[1])
  end
  if type(told) ~= 'number' or told == 0 then
    told = redis.pcall('publish', channel, message or KEYS[1])
  end
  return told
end

-- Offers the lock, if it is free, to the client that has waited longest, and notifies it, so that
-- for a while no other client can take the lock, however close it is to the server. An offer is a
-- field `<client id>:0` with depth 0. The client leaves the queue, and registers again if it asks
-- too late. So a client that has stopped costs one offer: the next one that listens is notified
-- too, asks how long the offer lasts, and asks again then. Without a `window` in ms, the lock stays
-- taken: the client keeps its place, and is only notified so that it learns when that ends.
-- A client whose channel has no listener is removed if one behind it is reached. If none is
-- reached, it may be dead, or only poll because it cannot listen, or the server may have restarted
-- or just become the master, and all may be about to listen. So it keeps its place for two seconds,
-- marked. That delays only clients that are about to listen themselves, and these come back in
-- their order. A client that has come since and listens is offered the lock, and a free lock that
-- is offered to no client goes to any that asks. Once a marked client asks, it is alive: it is
-- offered the lock as if it listened, in front of all others.
-- A place is the time when the client came, in ms. The place of a marked client is the time when it
-- was found without a listener, less `past`, and less `past` again once it has asked. If the clock
-- was set back, a mark later than now counts as over. Failures are ignored: a client that is not
-- woken tries again after a while.
-- `me` is a client in the queue that asks for the lock, or nil, and `returns` is set if it has just
-- lost its own listener. Returns whether it is the turn of `me`, and if not, in how many ms to ask
-- again, or -1.
local function wake(queue, window, shard, me, returns)
  if window and redis.pcall('exists', KEYS[1]) == 1 then
    return
  end
  local time, past = redis.call('time'), 1e13
  local now = time[1] * 1000 + time[2] / 1000
  local silent, passed, removed, turn, told, rest = {}, 0, 0, nil, nil, -1
  local beyond = false
  for looked_at = 0, 1000 do
    local ahead = #silent + passed
    local first = redis.pcall('zrange', queue, ahead, ahead, 'withscores')
    local next, came = first[1], tonumber(first[2])
    if looked_at == 1000 then
      -- However many clients are gone, they do not all delay the client that asks.
      next, beyond = me, true
    end
    if not next then
      break
    elseif next == me then
      if ahead == 0 or not returns then
        turn, told = me, #silent > 0 and tell(me, shard) or 0
      end
      break
    end
    local grace = came < -past / 2 and math.ceil(came + past + 2000 - now)
    if came < -past * 1.5 then
      turn, told = next, tell(next, shard)
      break
    elseif grace and rest > 0 then
      -- It goes behind another client that may be about to listen.
      passed = passed + 1
    else
      told = tell(next, shard)
      if told == 0 and string.find(next, '^[rwp]:') and tell(string.sub(next, 3), shard) ~= 0 then
        -- It waits for a kind that the name had before.
        grace = 0
      end
      if told ~= 0 then
        turn = next
        break
      elseif not grace then
        silent[#silent + 1] = next
      elseif grace > 0 and grace <= 2100 then
        rest, passed = grace, passed + 1
      elseif removed == 100 then
        -- A script does not run forever.
        passed = passed + 1
      elseif redis.pcall('zrem', queue, next) == 1 then
        removed = removed + 1
      else
        break
      end
    end
  end
  local reached = turn and type(told) == 'number' and told > 0
  for i, client in ipairs(silent) do
    if reached then
      redis.pcall('zrem', queue, client)
    else
      redis.pcall('zadd', queue, 'xx', now - past + i / 100, client)
      rest = 2000
    end
  end
  if turn and turn == me then
    return true
  end
  local offers = turn and window and type(told) == 'number'
  if offers and redis.pcall('hset', KEYS[1], turn .. ':0', 0) == 1 then
    if redis.pcall('pexpire', KEYS[1], window) == 1 then
      redis.pcall('zrem', queue, turn)
      rest = tonumber(window)
    elseif redis.pcall('hdel', KEYS[1], turn .. ':0') ~= 1 then
      -- No key is left without a TTL, whatever right the user lacks.
      redis.pcall('set', KEYS[1], '', 'px', 1)
    end
  end
  local others = {}
  if beyond and not reached then
    -- One of the clients behind may be listening, and will ask.
    others = redis.pcall('zrange', queue, -10, -1)
  elseif reached or rest > 0 then
    others = redis.pcall('zrange', queue, 0, 9)
  end
  for _, behind in ipairs(others) do
    if behind == me or behind ~= turn and tell(behind, shard) ~= 0 then
      break
    end
  end
  return false, rest
end
