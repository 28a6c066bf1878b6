-- The last part of the script that ends a hold of a read-write lock or a semaphore with a note, or
-- turns a writer into a reader, which keeps it.
-- KEYS  as in `release_member.lua`, and last the notes
-- ARGV  as in `release_member.lua`
-- USES  `run` and `prolong_notes`
-- RETURNS as in `release_member.lua`
local notes = table.remove(KEYS)
local reply = run()
if reply == 1 and ARGV[6] == '' then
  redis.pcall('hdel', notes, string.sub(ARGV[1], 3))
elseif reply == 1 then
  prolong_notes(notes, KEYS[1])
end
return reply
