-- Acquires a side of a read-write lock or a permit, or registers the client as waiting for it. Also
-- acquires the permits that are free for further threads of the client, in order.
-- First come, first served: while clients wait, a client gets only what it was offered. A repeat by
-- the same owner, whose first reply was lost, finds its hold.
-- KEYS  1 lock, 2 fence, 3 queue of waiting clients
-- ARGV  1 kind and owner, 2 lease in ms, 3 life of the fence in ms, 4 kind and client id, 5 `1` if
--       the client joins the queue when it must wait, `2` to also send it a message, which shows
--       that it hears, else `0`, 6 life of the queue in ms, 7 for
--       how many ms a place is offered, 8 the permits, 0 for a read-write lock, 9 `shard`, 10 how
--       many tokens to give a writer, for holds that follow one another, from 11 on kind and owner
--       for each further permit
-- USES  `at_least`, `find_members`, `is_hold`, `is_waiting`, `join`, `tell`, `serve`, `clock`,
--       `next_token` and `last_token`
-- RETURNS the fence if a side is held now; if several tokens are wanted, {first, last}; {1, 0 for
--         each permit that is held}; {0, ms after which to ask again or -1, and 0, 0, '' if
--         the message was sent, so that the client is told when the hold in its way ends} if
--         another owner holds it or waits for it
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kind = string.sub(ARGV[1], 1, 2)
if ARGV[5] == '2' then
  -- Most requests of a waiting client find nothing changed: it is in the queue, and a hold is in
  -- its way. That is the last member, or for a semaphore the first of as many last members as there
  -- are permits. A client in front does not count as such an obstacle: it may be gone, and then
  -- nothing would wake this one.
  local place = -math.max(1, tonumber(ARGV[8]))
  local found = redis.pcall('zrange', KEYS[1], place, place, 'withscores')
  local obstacle, ends = found[1] or '', tonumber(found[2] or 0)
  local its = string.sub(obstacle, 1, 2)
  local blocks = its == 'p:' and kind == 'p:' or its == 'w:' and kind ~= 'p:'
    or its == 'r:' and kind == 'w:'
  if blocks and ends > now and is_hold(obstacle) and string.sub(obstacle, -2) ~= ':0'
    and not redis.pcall('zscore', KEYS[1], ARGV[1]) and is_waiting(KEYS[3], ARGV[4], ARGV[6]) then
    local told = tell(string.sub(ARGV[4], 3), ARGV[9], 'leasehold:echo:0:' .. KEYS[1])
    if type(told) == 'number' and told > 0 then
      return {0, ends - now, 0, 0, ''}
    end
  end
end
local left, foreign, lowest, highest = find_members()
if foreign then
  return foreign
end
-- An offer lasts for a second at most. If more is left, the server's clock has since been set back,
-- and the offer would outlast leases that were renewed after that.
while highest and string.sub(highest[1], -2) == ':0' and tonumber(highest[2]) > now + 1000 do
  redis.call('zadd', KEYS[1], 'xx', now + 1000, highest[1])
  highest = redis.call('zrange', KEYS[1], -1, -1, 'withscores')
end
local held = highest and tonumber(highest[2]) > now and string.sub(highest[1], 1, 2)
if held and (held == 'p:') ~= (kind == 'p:') then
  local found = held == 'p:' and 'a semaphore' or 'a read-write lock'
  return redis.error_reply('WRONGTYPE found ' .. found)
end
-- A `try_` call leaves an offer for the waiting thread of its client.
local me = ARGV[5] ~= '0' and ARGV[4] or nil
local queue, permits = KEYS[3], tonumber(ARGV[8])
local queued = redis.pcall('exists', queue) == 1
local lease_ends = now + tonumber(ARGV[2])
local repeated, offered, mine = false, false, lease_ends
if left ~= -2 then
  local ends = redis.call('zscore', KEYS[1], ARGV[1])
  repeated = ends and tonumber(ends) > now
  mine = repeated and math.max(mine, tonumber(ends)) or mine
  ends = me and not repeated and redis.call('zscore', KEYS[1], me .. ':0')
  offered = ends and tonumber(ends) > now
end
-- A client that assumes more permits may have offered this one a permit that it must decline. If
-- another client waits, that client gets the offer, and this one registers again only when it next
-- asks. Otherwise two clients that must decline would offer the place to each other again and
-- again.
local declined = false
if offered and kind == 'p:' then
  local taken = redis.call('zcount', KEYS[1], '(' .. now, '+inf')
  if taken > permits then
    redis.call('zrem', KEYS[1], me .. ':0')
    offered, declined, permits = false, true, taken
  end
end
-- A client that has to wait is registered before any other write: a server that is out of memory
-- refuses the first write of a script only.
local serves = queued and not repeated and not offered
local joined = serves and me and not declined
if joined then
  join(queue, me, time, ARGV[6])
end
-- The number of other permits that are held.
local busy, live, rest = declined, 0, nil
if serves then
  local blocked
  blocked, rest = serve(queue, now, tonumber(ARGV[7]), permits, ARGV[9], me)
  local ends = me and redis.call('zscore', KEYS[1], me .. ':0')
  offered = ends and tonumber(ends) > now
  busy = declined or blocked and not offered
end
if not repeated and not busy and redis.call('exists', KEYS[1]) == 1 then
  if kind == 'p:' then
    live = redis.call('zcount', KEYS[1], '(' .. now, '+inf') - (offered and 1 or 0)
    busy = live >= permits
  elseif not offered then
    local holder = redis.call('zrange', KEYS[1], '(' .. now, '+inf', 'byscore', 'limit', 0, 1)[1]
    busy = holder and (kind == 'w:' or string.sub(holder, 1, 2) == 'w:')
  end
end
if busy and me and not joined and not (declined and serves) then
  join(queue, me, time, ARGV[6])
end
if busy then
  local ends
  if kind == 'w:' then
    -- A writer waits until all holds have ended.
    ends = redis.call('zrange', KEYS[1], -1, -1, 'withscores')[2]
  else
    ends = redis.call(
      'zrange', KEYS[1], '(' .. now, '+inf', 'byscore', 'limit', 0, 1, 'withscores')[2]
  end
  ends = ends and tonumber(ends) > now and tonumber(ends) - now or -1
  return {0, rest and (ends < 0 or rest < ends) and rest or ends}
end
local fence, shared, passed, least
if kind ~= 'p:' then
  least = clock(time)
  -- All readers between two writers have the token of the first reader.
  fence, shared, passed = next_token(least, kind == 'r:' or repeated and ARGV[10] == '1')
  if not fence then
    return shared
  end
end
if serves then
  highest = redis.call('zrange', KEYS[1], -1, -1, 'withscores')
end
local last = highest and highest[2]
-- The holds of a repeat already exist. New ones begin only together with the first one.
local waited_for = queued and redis.call('exists', queue) == 1
local room = (repeated or waited_for) and 0 or permits - live - 1
redis.call('zadd', KEYS[1], mine, ARGV[1])
local granted = 1
for i = 11, #ARGV do
  local ends = tonumber(left ~= -2 and redis.call('zscore', KEYS[1], ARGV[i]) or 0)
  if ends <= now then
    room = room - 1
  end
  if room < 0 then
    break
  end
  redis.call('zadd', KEYS[1], math.max(lease_ends, ends), ARGV[i])
  granted = granted + 1
end
local limited = redis.pcall('pexpireat', KEYS[1], math.max(mine, tonumber(last or 0)))
if limited ~= 1 then
  -- No key is left without a TTL, whatever right the user lacks.
  for i = 11, 9 + granted do
    redis.pcall('zrem', KEYS[1], ARGV[i])
  end
  if redis.pcall('zrem', KEYS[1], ARGV[1]) ~= 1 and left == -2 then
    redis.call('set', KEYS[1], '', 'px', 1)
  end
  return limited
end
if lowest and tonumber(lowest[2]) <= now then
  local over = redis.call('zrange', KEYS[1], '-inf', now, 'byscore', 'limit', 0, 100)
  for _, member in ipairs(over) do
    if is_hold(member) then
      redis.pcall('zrem', KEYS[1], member)
    end
  end
end
if offered then
  redis.call('zrem', KEYS[1], me .. ':0')
end
if shared then
  redis.pcall('pexpire', KEYS[2], at_least(ARGV[3], KEYS[2]))
end
if kind == 'p:' then
  local reply = {1}
  for i = 1, granted do
    reply[i + 1] = 0
  end
  return reply
end
local tokens = tonumber(ARGV[10])
return tokens == 1 and fence or {fence, last_token(fence, tokens, least, passed)}
