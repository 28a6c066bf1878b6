-- Part of the scripts after which a waiting client may get its turn at a read-write lock or a
-- semaphore.
-- KEYS  1 lock
-- USES  `tell`
-- SETS  `serve`

-- Offers all free places to the clients at the head of the queue, and notifies these clients.
-- Readers next to each other are served together, a writer alone. A client that is served leaves
-- the queue. If it has stopped, that costs the others only its offer: the next client that listens
-- is notified too, asks how long the offer lasts, and asks again then.
-- A client whose channel has no listener is removed if another one listens. If none does, the
-- server may have restarted or just become the master, and all of them may be about to listen. For
-- two seconds they then keep their places, and those behind them are only notified when that ends,
-- unless permits are left for both. Before its turn, a client without a listener is removed only
-- after it has waited for two seconds, because it may be about to listen, and behind some proxies
-- no client can listen. If the server refuses to publish, each client finds its turn when it next
-- asks.
-- A place in the queue is the time when the client came. Once a client was found without a
-- listener, its place is the time of that, less `past`, which is in front of all others. If the
-- clock has since been set back, the two seconds are over, and a client without such a mark counts
-- as one that comes now.
-- `now` is the server's clock in ms; a place is offered for `window` ms; `permits` is 0 for a
-- read-write lock; and `me`, or nil, is a client that asks and is not notified. Returns whether the
-- queue has a client whose turn has not come; and the maximum number of ms for which this is due to
-- a client without a listener, or nil.
local function serve(queue, now, window, permits, shard, me)
  local blocked, rest, reached, follows, silent, kept, past = false, nil, false, false, {}, 0, 1e13
  local served, young, beyond = 0, nil, false
  local function listens(client)
    return redis.pcall('pubsub', 'numsub', 'leasehold:wake:' .. client)[2] ~= 0
  end
  local function are_held()
    return redis.call('zcount', KEYS[1], '(' .. now, '+inf')
  end
  local function offer_to(next, client)
    local offer, last = next .. ':0', redis.call('zrange', KEYS[1], -1, -1, 'withscores')[2]
    local made = redis.pcall('zadd', KEYS[1], now + window, offer)
    local ends, told = math.max(now + window, tonumber(last or 0)), nil
    if type(made) == 'number' and redis.pcall('pexpireat', KEYS[1], ends) == 1 then
      told = next == me and 1 or tell(client, shard)
    end
    if type(told) ~= 'number' or told == 0 then
      local has_none = redis.pcall('zrem', KEYS[1], offer) ~= 1
      if has_none and redis.pcall('pttl', KEYS[1]) == -1 then
        -- No key is left without a TTL, whatever right the user lacks.
        redis.call('set', KEYS[1], '', 'px', 1)
        redis.call('pexpireat', KEYS[1], ends)
      end
    end
    return told
  end
  for looked_at = 0, 1000 do
    local first = redis.pcall('zrange', queue, #silent + kept, #silent + kept, 'withscores')
    local next = first[1]
    if not next then
      break
    elseif served == 100 or looked_at == 1000 then
      -- A script does not run forever. The others go before a client that comes now.
      blocked, beyond = true, looked_at == 1000
      break
    end
    local wanted, admitted = string.sub(next, 1, 2), nil
    if wanted == 'p:' and permits > 0 then
      admitted = are_held() + kept < permits
    elseif (wanted == 'r:' or wanted == 'w:') and permits == 0 then
      local holder = redis.call('zrange', KEYS[1], '(' .. now, '+inf', 'byscore', 'limit', 0, 1)[1]
      admitted = not holder or wanted == 'r:' and string.sub(holder, 1, 2) == 'r:'
    end
    local client, came = string.sub(next, 3), tonumber(first[2])
    local grace = came < -past / 2 and math.ceil(came + past + 2000 - now)
    if grace and grace > 2100 then
      grace = 0
    end
    local told
    if admitted == nil then
      -- It waits for a kind that the name had before.
      tell(string.find(wanted, '[rwp]:') and client or next, shard)
      told, grace = 0, 0
    elseif not admitted then
      if next ~= me and not listens(client) then
        young = grace and 0 or math.min(2000, math.ceil(came + 2000 - now))
        told = young <= 0 and 0 or nil
        if came > now + 1 then
          redis.pcall('zadd', queue, 'xx', now, next)
        end
      end
      grace = grace or 0
    else
      reached = reached or next == me and listens(client)
      if next ~= me or reached or #silent == 0 then
        told = offer_to(next, client)
      end
      if next ~= me and type(told) == 'number' and told > 0 then
        reached, follows, served = true, true, served + 1
      end
    end
    if told == 0 and not grace then
      silent[#silent + 1] = next
    elseif told == 0 and grace > 0 then
      rest, kept = math.max(rest or 0, grace), kept + 1
      if permits == 0 then
        blocked = true
        break
      end
    elseif type(told) ~= 'number' or redis.pcall('zrem', queue, next) ~= 1 then
      blocked = true
      break
    end
  end
  for i, client in ipairs(silent) do
    if reached then
      redis.pcall('zrem', queue, client)
    else
      redis.pcall('zadd', queue, 'xx', now - past + i / 100, client)
      rest, kept = 2000, kept + 1
    end
  end
  blocked = blocked or kept > 0 and (permits == 0 or are_held() + kept >= permits)
  local behind = {}
  if beyond and not follows then
    -- One of the clients behind may be listening, and will ask.
    behind = redis.pcall('zrange', queue, -10, -1)
  elseif blocked and (follows or rest) then
    behind = redis.pcall('zrange', queue, 0, 9)
  end
  for _, next in ipairs(behind) do
    if next == me or tell(string.sub(next, 3), shard) ~= 0 then
      break
    end
  end
  return blocked, rest or young and young > 0 and young or nil
end

