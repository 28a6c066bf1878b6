-- Tail of the scripts that acquire a side of a read-write lock or a permit: begins the hold.
-- USES  what `ask_member.lua` and `acquire_member.lua` set, and `fence`
local mine = now + tonumber(ARGV[2])
redis.call('zadd', KEYS[1], mine, ARGV[1])
redis.call('zremrangebyscore', KEYS[1], '-inf', now)
local ends = math.max(mine, tonumber(redis.call('zrange', KEYS[1], -1, -1, 'withscores')[2]))
local limited = redis.pcall('pexpireat', KEYS[1], ends)
if limited ~= 1 then
  redis.call('zrem', KEYS[1], ARGV[1]) -- No key is left without a TTL.
  return limited
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
