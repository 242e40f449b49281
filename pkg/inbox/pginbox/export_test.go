package pginbox

// TakeCommands is the statement with which Take leases commands.
const TakeCommands = takeCommands
