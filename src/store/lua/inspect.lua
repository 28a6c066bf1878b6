-- Reads the holder of a lock. A lock that is offered to a waiting client is not held.
-- KEYS  1 lock, 2 fence, if the token is wanted: while the slot of a cluster moves, a script with
--       one key is executed, and one with two keys has to wait for those that are missing
-- USES  `find_holder`
-- RETURNS {ms until the lease ends, owner, depth, last token or 0}, empty if it is not held
local left, holder, depth, foreign = find_holder()
if foreign then
  return foreign
end
if not holder or depth == '0' and string.sub(holder, -2) == ':0' then
  return {}
end
local fence = KEYS[2] and redis.pcall('get', KEYS[2])
return {left, holder, depth, type(fence) == 'string' and fence or '0'}
