-- Part of the scripts that change the queue of waiting clients, or after which one of them may get
-- its turn.
-- KEYS  1 lock
-- SETS  `tell` and `wake`

-- Tells a client, and returns how many listen, or no number if the server refuses to publish. In a
-- cluster that is by a sharded channel if the client has one at this node, because a message on any
-- other goes to all nodes: `shard` is the hash tag of such channels, or '' or nil. Redis 6.2 has
-- none, a client is not subscribed to one at once, and slots move; but each client listens on its
-- own channel at every master. The channels are those of `Keys`. Without another, the message is
-- the key of the lock: it may be free.
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

-- Offers the lock, if it is free, to the client that has waited longest, and tells it, so that no
-- other client can take the lock for a while, however near to the server. An offer is a field
-- `<client id>:0` with depth 0. The client leaves the queue, and registers again if it asks too
-- late; so one that has stopped costs one offer: the next one that listens is told too, asks until
-- when the offer lasts, and looks again then. Without a `window` in ms, the lock stays taken: the
-- client is only told, so that it learns when that ends, and keeps its place.
-- A client whose channel has no listener is removed if another one is reached. If none is, the
-- server may have restarted or just become the master, and all of them may be about to listen: for
-- two seconds they keep their places, and those behind them are only told that there is an end to
-- that. A place is the time when the client came, in ms; once the client was found without a
-- listener it is the time of that, less `past`, in front of all others. Failures are ignored: a
-- client that is not woken tries again after a while.
-- `me` is a client in the queue that asks for the lock, or nil. Returns whether it is its turn, and
-- if not, in how many ms to look again, or -1.
local function wake(queue, window, shard, me)
  if window and redis.pcall('exists', KEYS[1]) == 1 then
    return
  end
  local time, past = redis.call('time'), 1e13
  local now = time[1] * 1000 + time[2] / 1000
  local silent, turn, told, rest = {}, nil, nil, -1
  for looked_at = 0, 100 do
    local first = redis.pcall('zrange', queue, #silent, #silent, 'withscores')
    local next, came = first[1], tonumber(first[2])
    if looked_at == 100 then
      -- However many are gone, a client that asks is not kept waiting by all of them.
      next = me
    end
    if not next then
      break
    elseif next == me and #silent == 0 then
      return true
    end
    local grace = came < -past / 2 and math.ceil(came + past + 2000 - now)
    told = tell(next, shard)
    if told == 0 and string.find(next, '^[rwp]:') and tell(string.sub(next, 3), shard) ~= 0 then
      -- It waits for another kind, from before the name was used for this.
      grace = 0
    end
    if told ~= 0 then
      turn = next
      break
    elseif not grace then
      silent[#silent + 1] = next
    elseif grace > 0 then
      rest = grace
      break
    elseif redis.pcall('zrem', queue, next) ~= 1 then
      break
    end
  end
  local reached = turn and type(told) == 'number'
  for i, client in ipairs(silent) do
    if reached then
      redis.pcall('zrem', queue, client)
    else
      redis.pcall('zadd', queue, 'xx', now - past + i / 100, client)
      rest = 2000
    end
  end
  if reached and turn == me then
    return true
  elseif reached and window and redis.pcall('hset', KEYS[1], turn .. ':0', 0) == 1 then
    if redis.pcall('pexpire', KEYS[1], window) == 1 then
      redis.pcall('zrem', queue, turn)
      rest = tonumber(window)
    else
      -- No key is left without a TTL.
      redis.pcall('hdel', KEYS[1], turn .. ':0')
    end
  end
  local others = (reached or rest > 0) and redis.pcall('zrange', queue, 0, 9) or {}
  for _, behind in ipairs(others) do
    if behind == me or behind ~= turn and tell(behind, shard) ~= 0 then
      break
    end
  end
  return false, rest
end

