-- The last part of the script that ends a hold of a lock with a note.
-- KEYS  as in `release.lua`, and last the notes
-- ARGV  as in `release.lua`
-- USES  `run`
-- RETURNS as in `release.lua`
local notes = table.remove(KEYS)
local reply = run()
if reply == 1 then
  redis.pcall('hdel', notes, ARGV[1])
end
return reply
