/* Draws what devices report; the section stays away while none does. */
function drawDevices(section, data) {
  section.hidden = !data.devices.length;
}
