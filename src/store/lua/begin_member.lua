-- Tail of the scripts that acquire a side of a read-write lock or a permit: begins the hold.
-- USES  what `members.lua`, `ask_member.lua` and `acquire_member.lua` set, and `fence`
if serves then
  highest = redis.call('zrange', KEYS[1], -1, -1, 'withscores')
end
local mine, last = now + tonumber(ARGV[2]), highest and highest[2]
redis.call('zadd', KEYS[1], mine, ARGV[1])
local limited = redis.pcall('pexpireat', KEYS[1], math.max(mine, tonumber(last or 0)))
if limited ~= 1 then
  -- No key is left without a TTL, whatever right the user lacks.
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
-- Those who wait go before those who come. Readers of one client have one place in the queue: the
-- offer to them is kept, for the rest of its time, until the last one comes.
local waited_for = queued and redis.call('exists', queue) == 1
if offered and not (waited_for and ARGV[5] == '3') then
  redis.call('zrem', KEYS[1], me .. ':0')
end
if fence and not waited_for then
  return fence
end
return {1, fence or 0, (waited_for or repeated or fence) and 0 or permits - live - 1}
