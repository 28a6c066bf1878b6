-- Part of the scripts after which a client that waits may have its turn: offers places to the
-- clients at the head of the queue, as many as there are, and tells them. Neighbouring readers are
-- served together, a writer alone. A client that is served leaves the queue; if it has stopped, its
-- offer ends, and it has cost the others no more than that. A client whose channel has no listener
-- leaves the queue without an offer; before its turn, only when it has waited for two seconds,
-- because it may be about to listen, and behind some proxies no client can. If the server refuses
-- to publish, each client finds its turn when it next asks.
-- KEYS  1 lock
-- USES  `tell`; `now`; `serves`, whether to do so; `queue`, a key; `window`, for how many ms a
--       place is offered; `permits`, 0 for a read-write lock; and `me`, who is not told, or nil
-- SETS  `blocked`, whether a client is in the queue whose turn it is not
local blocked = false
for _ = 1, serves and 100 or 0 do
  local first = redis.pcall('zrange', queue, 0, 0, 'withscores')
  local next = first[1]
  if not next then
    break
  end
  local wanted, admitted = string.sub(next, 1, 2), nil
  if wanted == 'p:' and permits > 0 then
    admitted = redis.call('zcount', KEYS[1], '(' .. now, '+inf') < permits
  elseif (wanted == 'r:' or wanted == 'w:') and permits == 0 then
    local holder = redis.call('zrange', KEYS[1], '(' .. now, '+inf', 'byscore', 'limit', 0, 1)[1]
    admitted = not holder or wanted == 'r:' and string.sub(holder, 1, 2) == 'r:'
  end
  local client = string.sub(next, 3)
  -- Of another kind, from before the name was used for this: it waits for nothing.
  local told = admitted == nil and 0 or nil
  if admitted == false and next ~= me and now - first[2] > 2000 then
    told = redis.pcall('pubsub', 'numsub', 'leasehold:wake:' .. client)[2] == 0 and 0 or nil
  elseif admitted then
    local offer, last = next .. ':0', redis.call('zrange', KEYS[1], -1, -1, 'withscores')[2]
    local made = redis.pcall('zadd', KEYS[1], now + window, offer)
    local ends = math.max(now + window, tonumber(last or 0))
    if type(made) == 'number' and redis.pcall('pexpireat', KEYS[1], ends) ~= 1 then
      redis.pcall('zrem', KEYS[1], offer) -- No key is left without a TTL.
    elseif type(made) == 'number' then
      told = next == me and 1 or tell(client)
      if type(told) ~= 'number' or told == 0 then
        redis.pcall('zrem', KEYS[1], offer)
      end
    end
  end
  if type(told) ~= 'number' or redis.pcall('zrem', queue, next) ~= 1 then
    blocked = true
    break
  end
end

