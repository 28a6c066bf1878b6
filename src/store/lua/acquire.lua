-- Acquires a free lock, or registers the client as waiting for one that is held. A repeat by the
-- same owner, whose first reply was lost, finds its hold. A lock that is offered to the client is
-- free for it. Failures of the queue are ignored: without it, the client tries again after a while.
-- KEYS  1 lock, 2 fence, 3 queue of waiting clients
-- ARGV  1 owner, 2 lease in ms, 3 life of the fence in ms, 4 client id, 5 whether the client is in
--       the queue: 0 no; 1 no, and it joins if the lock is held; 2 it may be; 3 it may be, and a
--       client in front of it goes first, 6 life of the queue in ms
-- USES  `left`, `holder` and `foreign`
-- RETURNS {1, fence} if held now, {0, ms until the holder's lease ends or -1} if held by another
--         owner, {0, -1} if another client goes first
if foreign then
  return foreign
end
local offered = holder == ARGV[4] .. ':0'
local repeated = holder and not offered and redis.pcall('hexists', KEYS[1], ARGV[1]) == 1
local busy = left ~= -2 and not repeated and not offered
if left == -2 and ARGV[5] == '3' then
  local first = redis.pcall('zrange', KEYS[3], 0, 0)[1]
  if first and first ~= ARGV[4] then
    busy, left = true, -1
  end
end
if busy then
  if ARGV[5] ~= '0' then
    local mode, score = 'nx', time[1] * 1000 + time[2] / 1000
    local before = redis.pcall('zscore', KEYS[3], ARGV[4])
    before = type(before) == 'string' and tonumber(before)
    if before and math.abs(before * 1000 % 1 - 0.5) < 0.25 then
      -- The client did not take its offer in time, but it has not stopped: it stays in the queue.
      mode, score = 'xx', before - 0.0005
    end
    local joined = redis.pcall('zadd', KEYS[3], mode, score, ARGV[4])
    -- No key is left without a TTL, even if the user lacks the right to set one.
    if type(joined) == 'number' and redis.pcall('pexpire', KEYS[3], ARGV[6]) ~= 1 then
      redis.pcall('zrem', KEYS[3], ARGV[4])
    end
  end
  return {0, left}
end
if spoilt then
  return spoilt
end
local fence = repeated and last
if not fence then
  fence = next_fence
  -- The first write: a server that is out of memory refuses it, and would not refuse later ones.
  redis.call('set', KEYS[2], string.format('%.0f', fence), 'px', ARGV[3])
  -- Has no effect on a missing key, but fails if the user lacks the right to set a TTL: a hash that
  -- could not be given one afterwards would be held for ever.
  redis.call('pexpire', KEYS[1], ARGV[2])
  redis.call('hset', KEYS[1], ARGV[1], 1)
  if offered then
    redis.call('hdel', KEYS[1], holder)
  end
end
redis.call('pexpire', KEYS[1], ARGV[2])
if ARGV[5] == '2' or ARGV[5] == '3' then
  redis.pcall('zrem', KEYS[3], ARGV[4])
elseif offered then
  -- A thread of the client still waits, and the client has taken its offer.
  redis.pcall('zadd', KEYS[3], 'xx', time[1] * 1000 + time[2] / 1000, ARGV[4])
end
return {1, fence}
