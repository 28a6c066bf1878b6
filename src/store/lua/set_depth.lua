-- Sets the depth of a hold to an absolute number and, if it is renewed, renews its lease. If it is
-- only renewed, a server that is out of memory does not refuse that.
-- KEYS  1 lock
-- ARGV  1 owner, 2 depth, or '' to leave it as it is, or `watch` to have the owner's client told
--       when another one waits: the depth has a zero in front from then on, 3 lease in ms, 0 to
--       leave the end of the hold as it is
-- RETURNS 1, or 0 if the hold is gone
local depth = redis.call('hget', KEYS[1], ARGV[1]) or '0'
if depth == '0' then
  return 0
end
if ARGV[2] ~= '' then
  local zero = (ARGV[2] == 'watch' or string.sub(depth, 1, 1) == '0') and '0' or ''
  local next = ARGV[2] == 'watch' and string.gsub(depth, '^0', '') or ARGV[2]
  redis.call('hset', KEYS[1], ARGV[1], zero .. next)
end
if ARGV[3] ~= '0' then
  redis.call('pexpire', KEYS[1], ARGV[3])
end
return 1
