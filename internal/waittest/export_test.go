package waittest

// SlownessOf is slownessOf.
var SlownessOf = slownessOf
