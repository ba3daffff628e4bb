// A page of one moment has no time to go through; the map asks for the moment all the same.
const view = { moment: 0, listeners: [] };
