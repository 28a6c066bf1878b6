-- The first part of the script that ends a hold of a lock: the usual case, a lock that becomes free
-- and that no client waits for, at one server or at one of several. Like `take.lua`, it comes
-- before the parts that it does not need.
-- KEYS  1 lock, 2 queue of waiting clients, 3 and 4 as in `release.lua`
-- ARGV  1 owner, 2 and 3 as in `release.lua`
-- SETS  `owner`, `window`, `taken`; and if known `answer`, and whether clients wait, `waits`
local owner, window, taken, answer, waits = ARGV[1], ARGV[2], ARGV[3], nil, nil
if (taken == '0' or taken == 'leave0') and window ~= '' then
  answer = redis.call('hdel', KEYS[1], owner)
  waits = answer == 1 and KEYS[2] and redis.pcall('exists', KEYS[2])
  if not waits and (taken == '0' or answer == 1) or waits == 0 and not KEYS[3] then
    return answer
  end
end
