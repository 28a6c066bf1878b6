-- A number that the holder of the lock reads and writes. The script rejects fences smaller than the
-- greatest that it has seen, even for reads: otherwise an old holder could still write after a new
-- one has read.
-- KEYS  1 register
-- ARGV  1 fence, 2 new value, only to write
-- RETURNS the value, or -1 if the fence is too small
local seen = redis.call('hget', KEYS[1], 'fence')
if seen and tonumber(ARGV[1]) < tonumber(seen) then
  return -1
end
redis.call('hset', KEYS[1], 'fence', ARGV[1])
if ARGV[2] then
  redis.call('hset', KEYS[1], 'value', ARGV[2])
end
return tonumber(redis.call('hget', KEYS[1], 'value') or 0)
