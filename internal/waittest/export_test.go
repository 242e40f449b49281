package waittest

// SlownessOf is slownessOf.
var SlownessOf = slownessOf

// Quiet is how long the work takes on a quiet machine.
const Quiet = quiet
