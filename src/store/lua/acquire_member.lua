-- Part of the scripts that acquire a side of a read-write lock or a permit: returns if that is not
-- possible.
-- USES  what `ask_member.lua` and `serve.lua` set
-- SETS  `begins`, `keeps` and `least`; and `live`, the number of other permits that are held
local busy, live = declined, 0
if serves then
  local ends = me and redis.call('zscore', KEYS[1], me .. ':0')
  offered = ends and tonumber(ends) > now
  busy = declined or blocked and not offered
end
if not repeated and not busy and redis.call('exists', KEYS[1]) == 1 then
  local holder = redis.call('zrange', KEYS[1], '(' .. now, '+inf', 'byscore', 'limit', 0, 1)[1]
  local held = holder and string.sub(holder, 1, 2)
  if held and (held == 'p:') ~= (kind == 'p:') then
    local found = held == 'p:' and 'a semaphore' or 'a read-write lock'
    return redis.error_reply('WRONGTYPE found ' .. found)
  elseif kind == 'p:' then
    live = redis.call('zcount', KEYS[1], '(' .. now, '+inf') - (offered and 1 or 0)
    busy = live >= permits
  elseif not offered then
    busy = held and (held == 'w:' or kind == 'w:')
  end
end
if joined or busy and me and not (declined and serves) then
  if not joined then
    redis.pcall('zadd', queue, 'nx', time[1] * 1000 + time[2] / 1000, me)
  end
  -- No key is left without a TTL, even if the user lacks the right to set one.
  if redis.pcall('pexpire', queue, ARGV[6]) ~= 1 then
    redis.pcall('zrem', queue, me)
  end
end
if busy then
  local ends
  if kind == 'w:' then
    ends = redis.call('zrange', KEYS[1], -1, -1, 'withscores')[2] -- All have to end.
  else
    ends = redis.call(
      'zrange', KEYS[1], '(' .. now, '+inf', 'byscore', 'limit', 0, 1, 'withscores')[2]
  end
  ends = ends and tonumber(ends) > now and tonumber(ends) - now or -1
  return {0, rest and (ends < 0 or rest < ends) and rest or ends}
end
-- A permit has no token. All readers between two writers have the same one, which is greater than
-- the first writer's.
local begins, keeps = kind ~= 'p:', repeated or kind == 'r:'
local least = begins and clock(time)

