-- Sets the depth of a hold to an absolute number and, if it is renewed, renews its lease. If it is
-- only renewed, a server that is out of memory does not refuse that.
-- KEYS  1 lock
-- ARGV  1 owner, 2 depth, or '' to leave it as it is, 3 lease in ms, 0 to leave the end of the hold
--       as it is
-- RETURNS 1, or 0 if the hold is gone
if (redis.call('hget', KEYS[1], ARGV[1]) or '0') == '0' then
  return 0
end
if ARGV[2] ~= '' then
  redis.call('hset', KEYS[1], ARGV[1], ARGV[2])
end
if ARGV[3] ~= '0' then
  redis.call('pexpire', KEYS[1], ARGV[3])
end
return 1
