-- Tail of the scripts that acquire a side of a read-write lock or a permit.
-- USES  what `ask_member.lua` and `serve.lua` set; and of the fence `last`, `next_fence`, `spoilt`
local busy = false
if serves then
  local ends = redis.call('zscore', KEYS[1], me .. ':0')
  offered = ends and tonumber(ends) > now
  busy = blocked and not offered
end
if not repeated and not busy and redis.call('exists', KEYS[1]) == 1 then
  local holder = redis.call('zrange', KEYS[1], '(' .. now, '+inf', 'byscore', 'limit', 0, 1)[1]
  local held = holder and string.sub(holder, 1, 2)
  if held and (held == 'p:') ~= (kind == 'p:') then
    return redis.error_reply('WRONGTYPE ' .. KEYS[1] .. ' holds a lock of another kind')
  elseif kind == 'p:' then
    local live = redis.call('zcount', KEYS[1], '(' .. now, '+inf')
    busy = live - (offered and 1 or 0) >= permits
  elseif not offered then
    busy = held and (held == 'w:' or kind == 'w:')
  end
end
if joined or busy and ARGV[5] ~= '0' then
  if not joined then
    redis.pcall('zadd', queue, 'nx', time[1] * 1000 + time[2] / 1000, me)
  end
  -- No key is left without a TTL, even if the user lacks the right to set one.
  if redis.pcall('pexpire', queue, ARGV[6]) ~= 1 then
    redis.pcall('zrem', queue, me)
  end
end
if busy then
  local range = {'(' .. now, '+inf', 'byscore', 'limit', 0, 1, 'withscores'}
  if kind == 'w:' then
    range = {-1, -1, 'withscores'} -- All have to end.
  end
  local ends = redis.call('zrange', KEYS[1], unpack(range))[2]
  return {0, ends and tonumber(ends) > now and tonumber(ends) - now or -1}
end
if kind ~= 'p:' and spoilt then
  return spoilt
end
-- The first write of an acquire that has not had to wait.
local fence = 0
if kind == 'w:' then
  fence = repeated and last or next_fence
elseif kind == 'r:' then
  -- All readers between two writers have the same token, which is greater than the first writer's.
  fence = last or next_fence
end
if kind ~= 'p:' and fence ~= last then
  redis.call('set', KEYS[2], string.format('%.0f', fence), 'px', ARGV[3])
end
local mine = now + tonumber(ARGV[2])
redis.call('zadd', KEYS[1], mine, ARGV[1])
redis.call('zremrangebyscore', KEYS[1], '-inf', now)
local ends = math.max(mine, tonumber(redis.call('zrange', KEYS[1], -1, -1, 'withscores')[2]))
local limited = redis.pcall('pexpireat', KEYS[1], ends)
if limited ~= 1 then
  redis.call('zrem', KEYS[1], ARGV[1]) -- No key is left without a TTL.
  return limited
end
if offered then
  redis.call('zrem', KEYS[1], me .. ':0')
end
return {1, fence}
