-- Acquires a free lock, or registers the client as waiting for one that is held. A repeat by the
-- same owner, whose first reply was lost, finds its hold and renews it. A lock that is offered to
-- the client is free for it. A client that gets the lock leaves the queue, and one that does not
-- joins it. Failures in the queue are ignored: the client tries again after a while.
-- The number of an owner whose client may keep the lock unused has 16 digits, the first of them 8
-- to f. Each request of a client that joins the queue is reported to the holder's client if that
-- client may keep the lock or watches its hold. The depth of a watched hold starts with a zero.
-- KEYS  1 lock, 2 fence, 3 queue of waiting clients, 4 if the client leaves turns to Redisson or to
--       pollers: Redisson's turn, 5 if to pollers: whose turn it is
-- ARGV  1 owner, 2 lease in ms, 3 life of the fence in ms, 4 life of the queue in ms, 0 if the
--       client does not join it, less than 0 if it joins only for a lock that may be kept, 5 the
--       least token, sent to the servers of a quorum because their own clocks would never agree on
--       one, or '', 6 if the client may be in the queue: `queued`, or `yields` if a free lock is
--       first offered to those in front of it, or `returns` if it has also just lost its listener;
--       `kept` if it has the lock and wants more tokens, or only wants a kept lock released; or '',
--       7 with 6: how many tokens to give, for holds that follow one another, 8 with 6: for how
--       many ms the lock is offered, 9 with 6: `shard`, 10 `echo` to send a client that waits a
--       message, which shows that it hears
-- USES  `begin`, `left`, `find_holder`, `longest`, `is_client`, `is_waiting`, `join`, `is_wanted`,
--       `tell`, `wake`, `whose_turn`, `set_turn`, `at_least`, `clock`, `next_token` and
--       `last_token`
-- RETURNS the fence if held now; if several are wanted, {first fence, last fence, 1 if another
--         client waits}; {0, ms until the holder's lease ends or -1, 1 if the holder's client may
--         keep the lock and was therefore notified, 0, the holder if the echo was sent, so that the
--         client is told when that hold ends} if held by another owner; {0, ms after which to ask
--         again or -1} if another client goes first
local holder, depth, foreign, alone
left, holder, depth, foreign, alone = find_holder(left)
local queued, tokens = ARGV[6] ~= '' and ARGV[6], tonumber(ARGV[7] or 1)
-- The owner `replaced` stands for an offer to the client. Its field is removed.
local begins, client, keeps, replaced, time = true, nil, nil, nil, nil
local function wait()
  local life = string.match(ARGV[4], '%d+')
  if queued and is_waiting(KEYS[3], client, life) then
    return true
  end
  time = time or redis.call('time')
  local joined = join(KEYS[3], client, time, life, tonumber(ARGV[4]) < 0)
  local place = queued and queued ~= 'returns' and tonumber(redis.pcall('zscore', KEYS[3], client))
  if place and place < -5e12 and place > -15e12 then
    -- The client was marked as one without a listener, but it is alive.
    redis.pcall('zadd', KEYS[3], 'xx', place - 1e13, client)
  end
  return joined
end
-- Whose turn it is, these clients' or the pollers', and how many ms are left of the pollers' turn.
local whose, at, seen, now, rest = nil, nil, nil, nil, 0
if KEYS[5] then
  whose, at, seen, now = whose_turn(KEYS[5])
  if left == -2 and whose == 'theirs' then
    rest = math.max(0, at + 20 - now)
  elseif left > 0 and not foreign and redis.call('type', KEYS[1]).ok == 'string' then
    -- A poller has the lock. It sends no message when it releases the lock, and the next poller
    -- soon tries for it.
    left = 0
    if whose ~= 'theirs' or at + 20 <= now and seen < at then
      -- The lock was acquired in an earlier turn.
      at, seen = now - 20, 0
    end
    if now - seen >= 100 then
      set_turn(KEYS[5], 'theirs', at, now)
    end
  end
end
if left ~= -2 or queued then
  if foreign then
    return foreign
  end
  client = string.match(ARGV[1], '^(.*):')
  if holder == client .. ':0' then
    replaced = holder
  elseif holder then
    local mine = holder == ARGV[1] and depth
    mine = mine or not alone and redis.pcall('hget', KEYS[1], ARGV[1])
    keeps = type(mine) == 'string' and mine ~= '0'
    begins = keeps
  elseif rest == 0 and (queued == 'yields' or queued == 'returns') then
    local first = redis.pcall('zrange', KEYS[3], 0, 0)[1]
    if first and first ~= client then
      wait()
      begins, left = wake(KEYS[3], ARGV[8], ARGV[9], client, queued == 'returns')
    end
  end
end
local turn = KEYS[4] and begins and not holder and redis.pcall('get', KEYS[4])
turn = type(turn) == 'string' and turn ~= '0' and tonumber(turn)
if turn then
  -- A free lock is not acquired during Redisson's turn. A turn lasts 10 ms at most: a later end
  -- comes from a clock that has since been set back, or from another program.
  time = time or redis.call('time')
  local ends_in = turn - time[1] * 1000 - math.floor(time[2] / 1000)
  if ends_in <= 10 then
    rest = math.max(rest, ends_in)
  end
end
if rest > 0 then
  begins, left, client = false, rest, string.match(ARGV[1], '^(.*):')
end
if not begins or queued == 'kept' and not keeps then
  local life, id, number, keepable, waits = tonumber(ARGV[4]), nil, nil, nil, false
  if life ~= 0 and holder then
    id, number = string.match(holder, '^(.*):(%x+)$')
    keepable = id and #number == 16 and number >= '8'
  end
  if life > 0 or keepable then
    waits = wait()
  end
  local most = holder and longest(holder, depth)
  if most and left > most then
    -- The server's clock has since been set back. If the client joins, this is not the first write,
    -- and a server that is out of memory refuses only the first.
    left = most
    redis.pcall('pexpire', KEYS[1], string.format('%.0f', most))
  end
  if keepable or id and life > 0 and depth ~= '0' and string.sub(depth, 1, 1) == '0' then
    local what = life > 0 and 'want:' or 'try:'
    local told = tell(id, ARGV[9], 'leasehold:' .. what .. number .. ':' .. KEYS[1])
    waits = waits and told ~= 0
  end
  local echo = 'leasehold:echo:0:' .. KEYS[1]
  local told = ARGV[10] and waits and id and is_client(holder) and tell(client, ARGV[9], echo)
  if type(told) == 'number' and told > 0 then
    return {0, left, keepable and 1 or 0, 0, holder}
  end
  return {0, left, keepable and 1 or nil}
end
local least = ARGV[5] or ''
if least == '' then
  time = time or redis.call('time')
  least = clock(time)
end
local fence, kept, passed = next_token(least, keeps and tokens == 1)
if not fence then
  return kept
end
if not keeps then
  redis.call('hset', KEYS[1], ARGV[1], '1')
  if replaced then
    redis.call('hdel', KEYS[1], replaced)
  end
end
-- A repeat may be late, but a request for more tokens always gives a whole lease, because no hold
-- with an age limit makes such a request.
local repeats = keeps and queued ~= 'kept'
local failure = begin(repeats and at_least(ARGV[2], KEYS[1]) or ARGV[2])
if failure then
  return failure
end
if not keeps and whose == 'theirs' then
  local length = now - seen > 2000 and 100 or 20
  if seen >= at then
    length = math.min(10000, math.max(length, now - at))
  end
  set_turn(KEYS[5], 'ours', now + length, seen)
end
if queued then
  redis.pcall('zrem', KEYS[3], client)
end
if tokens == 1 then
  return fence
end
local last = last_token(fence, tokens, least, passed)
return {fence, last, is_wanted(KEYS[3], ARGV[1]) and 1 or nil}
