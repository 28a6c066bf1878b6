-- Tail of `transfer.lua`: ends the old hold, unless a new one has begun.
-- KEYS and ARGV  as `transfer.lua`
-- USES  `fence`
if fence then
  return fence
end
redis.call('hdel', KEYS[1], ARGV[4])
local answer, queue, window, shard = {2, 0}, KEYS[3], ARGV[6], ARGV[7]

