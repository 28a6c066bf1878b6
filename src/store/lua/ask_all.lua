-- Acquires several locks if all of them are free, and none otherwise. A repeat by the same owners,
-- whose first reply was lost, finds its holds. What is not free is not looked at closely: the
-- client then asks for that lock alone.
-- KEYS  lock and fence of each name
-- ARGV  1 lease in ms, 2 life of the fences in ms, 3 and later: the owner for each name
-- SETS  `repeated`, whether each lock is held already; `begins` and `time`
-- RETURNS {1, fence of each} if held now, {0, number of the first name that is not free, ms until
--         its holder's lease ends or -1}
local repeated = {}
for i = 1, #KEYS / 2 do
  local left = redis.call('pttl', KEYS[2 * i - 1])
  repeated[i] = left ~= -2 and redis.pcall('hexists', KEYS[2 * i - 1], ARGV[i + 2]) == 1
  if left ~= -2 and not repeated[i] then
    return {0, i, left}
  end
end
local begins, time = true, nil

